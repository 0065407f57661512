"""Price lists in the forms of AWS and Azure, small and made up."""

from __future__ import annotations

import csv
import io
import json

COLUMNS = (
    "SKU", "OfferTermCode", "RateCode", "TermType", "PriceDescription", "EffectiveDate", "StartingRange", "EndingRange",
    "Unit", "PricePerUnit", "Currency", "RelatedTo", "LeaseContractLength", "PurchaseOption", "OfferingClass",
    "Product Family", "serviceCode", "Location", "Location Type", "Instance Type", "Current Generation",
    "Instance Family", "vCPU", "Physical Processor", "Clock Speed", "Memory", "Storage", "Network Performance",
    "Processor Architecture", "Tenancy", "Operating System", "License Model", "usageType", "operation",
    "CapacityStatus", "GPU", "GPU Memory", "Pre Installed S/W", "Region Code", "serviceName",
)  # fmt: skip
_COMMON = {
    "SKU": "2223B6PCG6QAUYY6", "OfferTermCode": "JRTCKXETXF", "TermType": "OnDemand", "StartingRange": "0",
    "EndingRange": "Inf", "Unit": "Hrs", "Currency": "USD", "Product Family": "Compute Instance",
    "serviceCode": "AmazonEC2", "Location": "US East (N. Virginia)", "Location Type": "AWS Region",
    "Tenancy": "Shared", "Operating System": "Linux", "License Model": "No License required",
    "operation": "RunInstances", "CapacityStatus": "Used", "Pre Installed S/W": "NA", "Region Code": "us-east-1",
    "PriceDescription": '$0.526 per On Demand Linux "g4dn.xlarge"', "serviceName": "Amazon Elastic Compute Cloud",
}  # fmt: skip


def aws_row(instance_type: str, price: str, **columns: str) -> dict[str, str]:
    """A row of the offer file; names of columns with underscores for spaces."""
    named = {key.replace("_", " "): value for key, value in columns.items()}
    return {**_COMMON, "Instance Type": instance_type, "PricePerUnit": price, **named}


AWS_ROWS = (
    aws_row("g4dn.xlarge", "0.5260000000", vCPU="4", Memory="16 GiB", GPU="1", Network_Performance="Up to 25 Gigabit"),
    aws_row("g4dn.xlarge", "0.7100000000", GPU="1", Operating_System="Windows"),
    aws_row("g4dn.xlarge", "0.3300000000", GPU="1", TermType="Reserved"),
    aws_row("g4dn.xlarge", "0.5790000000", GPU="1", Tenancy="Dedicated"),
    aws_row("g4dn.xlarge", "0.5260000000", GPU="1", CapacityStatus="AllocatedCapacityReservation"),
    aws_row("g4dn.xlarge", "0.9000000000", GPU="1", **{"Pre Installed S/W": "SQL Web"}),
    aws_row(
        "p5.48xlarge", "49.5360000000", vCPU="192", Memory="2,048 GiB", GPU="8", Network_Performance="3200 Gigabit"
    ),
    aws_row("p6e-gb200.36xlarge", "0.0000000000", GPU="4"),
    aws_row("g9z.xlarge", "2.5000000000", GPU="1"),
    aws_row("g4ad.xlarge", "0.3785300000", GPU="1"),
    aws_row("g5g.16xlarge", "2.7440000000", GPU="1"),
    aws_row("m5.large", "0.0960000000", GPU="NA", vCPU="2", Memory="8 GiB"),
)


def aws_file(rows: tuple[dict[str, str], ...] = AWS_ROWS, *, published: str = "2026-11-20T18:04:55Z") -> str:
    """The offer file of a region."""
    text = io.StringIO()
    writer = csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writerow(("FormatVersion", "v1.0"))
    writer.writerow(("Disclaimer", "This pricing list is for informational purposes only."))
    writer.writerow(("Publication Date", published))
    writer.writerow(("Version", "20261120180455"))
    writer.writerow(("OfferCode", "AmazonEC2"))
    writer.writerow(COLUMNS)
    writer.writerows([row.get(column, "") for column in COLUMNS] for row in rows)
    return text.getvalue()


def azure_item(size: str, price: float, **fields: object) -> dict[str, object]:
    """An item of the Retail Prices API."""
    plain = size.removeprefix("Standard_").replace("_", " ")
    return {
        "currencyCode": "USD", "tierMinimumUnits": 0.0, "retailPrice": price, "unitPrice": price,
        "armRegionName": "eastus", "location": "US East", "effectiveStartDate": "2023-11-01T00:00:00Z",
        "meterName": plain, "productName": "Virtual Machines NC Series", "skuName": plain,
        "serviceName": "Virtual Machines", "serviceFamily": "Compute", "unitOfMeasure": "1 Hour",
        "type": "Consumption", "isPrimaryMeterRegion": True, "armSkuName": size, **fields,
    }  # fmt: skip


AZURE_ITEMS = (
    azure_item("Standard_NC24ads_A100_v4", 3.673),
    azure_item("Standard_NC24ads_A100_v4", 4.777, productName="Virtual Machines NC A100 v4 Series Windows"),
    azure_item("Standard_NC40ads_H100_v5", 6.98),
    azure_item("Standard_NC40ads_H100_v5", 8.82, productName="Virtual Machines NCads H100 v5 Srs Win"),
    azure_item("Standard_NC40ads_H100_v5", 1.42, skuName="NC40adsH100v5 Spot", meterName="NC40adsH100v5 Spot"),
    azure_item("Standard_NC40ads_H100_v5", 1.39, skuName="NC40adsH100v5 Low Priority"),
    azure_item("Standard_NC24ads_A100_v4", 26_000.0, type="Reservation", unitOfMeasure="1 Year"),
    azure_item("Standard_NV6ads_A10_v5", 0.454),
    azure_item("Standard_NV8as_v4", 0.466),
    azure_item("Standard_NC4as_T4_v3", 0.526, currencyCode="EUR"),
    azure_item("", 0.1),
)


def azure_page(items: tuple[dict[str, object], ...] = AZURE_ITEMS, *, following: str | None = None) -> str:
    """A page of the Retail Prices API."""
    return json.dumps(
        {
            "BillingCurrency": "USD", "CustomerEntityId": "Default", "CustomerEntityType": "Retail",
            "Items": items, "NextPageLink": following, "Count": len(items),
        }
    )  # fmt: skip
